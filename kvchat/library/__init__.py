"""Models: their metadata, memory needs, local files and downloads. Runs none of them.

`model_files.py` lists the folders that may hold models and groups files into models (parts, projectors),
`model_library.py` reads their headers and caches them by the files' stamps. `verdict.py` judges a model as fitting,
tight or too large, by the context size kvchat would choose and the results of earlier loads.

`downloader.py` writes the bytes itself, because `hf_hub_download` cannot resume after an interruption. Until every
hash is verified, `<name>.part` and `<name>.download` exist where the model will be. `downloads.py` runs the downloads
one after the other on an event loop in a thread of their own.
"""
