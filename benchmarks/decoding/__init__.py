"""The fused step of decode: its kernels alone, whole steps, and a peer in plain torch."""
