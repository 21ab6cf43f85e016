"""What can be had: models from Hugging Face, the starter, engines from GitHub; downloads. What has arrived is for `local` to find."""
