"""The index: save points, the tokens they stand for, and the blocks they are made of."""
