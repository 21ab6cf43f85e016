"""Long runs on a real engine, simulating a year of use and a hundred power cuts. `packaging/soak` runs them."""
