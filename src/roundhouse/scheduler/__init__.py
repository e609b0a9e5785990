"""Which tokens of which requests are computed in the next step. Pure: no torch, no sockets, no threads, no clock."""
