"""Model selection: the models window with its downloads, the first start, the menu and box of models.

The logic of search, fit and download is in `library`.
"""
