"""How much of a gateway one WebSocket may take, whoever has opened it.

The largest message is a setting of the server: `ws_max_size` in listener.py.
"""

# How long the frames of one connection are parsed or handled before it is the turn of others, and
# how many turns of the event loop those get. A turn without work costs next to nothing.
SLICE_SECS = 0.001
TURNS_OF_OTHERS = 8
# A message in more pieces is refused: pieces without content count for nothing in its size.
MAX_PIECES = 1024
