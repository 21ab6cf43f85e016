"""Models: what their files say, what memory they take, which are here and which can be had. Runs none of them."""
