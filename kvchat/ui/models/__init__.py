"""Models to choose from: the models window with its downloads, the first start, the menu and the box of models.

What is found, fits and is fetched is judged in `library`.
"""
