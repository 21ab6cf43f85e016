"""Long runs on a real engine: what a year of use and a hundred power cuts do. `packaging/soak` runs them."""
