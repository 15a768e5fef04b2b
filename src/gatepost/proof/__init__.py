"""Proofs of messages: one file that shows what gateways signed about a message, and its checks.

A gateway gathers the evidence (`gatepost.gateway.admin.proof_api`). A machine without a gateway
verifies it with the genesis key of the room alone.
"""
