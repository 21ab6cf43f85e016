"""Models: metadata, memory needs, local files and downloads. Does not run them.

`model_files.py` lists the folders that may hold models and groups their files into models (parts, projectors).
`model_library.py` reads the headers. `memory/verdict.py` judges whether a model fits, by the context size that kvchat
would choose and the results of earlier loads.

`remote/downloader.py` writes the files itself, because `hf_hub_download` cannot resume after an interruption. Until all
hashes are verified, `<name>.part` and `<name>.download` exist in the place of the model. `remote/downloads.py` runs one
download after the other, on an event loop in another thread.
"""
