"""The receiver's side: each event of another gateway's outbox is taken once, in order, for good.

A whole batch is taken in one transaction with the cursor. A tracked event is accepted into its
agent's mailbox, or refused, or held: a number of its pair is missing, its blob is not here yet, or
the mailbox is full. A held event has no receipt and stops no other pair. An offer is accepted
without engaging its agent until its sender confirms it.
"""
