"""What a model takes of this computer's memory, and what fits: context size, offload, verdict."""
