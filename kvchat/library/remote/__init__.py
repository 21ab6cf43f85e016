"""Models and engines that can be had: Hugging Face, the starter, GitHub, downloads. What arrived is for `local`."""
