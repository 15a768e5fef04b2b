"""`gatepost top`: the room in a terminal, over the operator's API of one gateway."""
