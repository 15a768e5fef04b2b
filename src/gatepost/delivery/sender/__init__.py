"""The sender's side: each message it emits is a delivery it follows until that ends.

Receipts, time, and changes in the room move a delivery. Only a receipt from the node a message is
routed to counts. All of it runs in the writer's thread.
"""
