"""Models: choice, downloads and the first start."""
