"""Agents of A2A elsewhere, which are agents of this gateway: their mail is carried to them."""
