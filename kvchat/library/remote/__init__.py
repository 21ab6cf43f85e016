"""Models that can be had: Hugging Face, the starter, downloads. What has arrived is for `local` to find."""
