"""The plan of a step → tokens: rows, slots, attention, sampling. Everything that knows torch, besides `models`."""

import os

# Torch's threads wait for each other by spinning, a thousand times a step. libgomp's own limit is for a machine of
# one's own: beside one other busy process on 2 cores 27 tokens/s became 5 with one stream, and 143 became 7 with eight.
# This limit gives 22 and 135 alone, 11 and 58 beside the other. It is read when torch is imported, so it stands here.
os.environ.setdefault("GOMP_SPINCOUNT", "6000")

# oneDNN keeps what it prepared for each matrix shape, and a step's number of rows is a shape: at its own limit of 1,024
# entries an engine grew by over a gigabyte as it met new step sizes. With 64 the four linear layers of a small model
# took 100 MiB for 512 sizes in place of 1,350; a size that is met again later costs under a millisecond a layer.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
