"""The door for A2A: its clients reach agents here, and agents of A2A elsewhere are agents here."""
