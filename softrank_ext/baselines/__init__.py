"""What the paper compares Soft-Rank Diffusion with; `softrank_ext.methods` has the methods by name."""
