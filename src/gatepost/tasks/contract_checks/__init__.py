"""Contents checked against contracts, in processes that can be killed."""
