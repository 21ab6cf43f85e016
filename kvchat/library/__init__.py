"""Models: their metadata, memory needs, local files and downloads. Runs none of them.

`model_files.py` knows where models may lie and makes models of file names (parts, projectors), `model_library.py`
reads their headers and caches them by the files' stamps. `verdict.py` says fits, tight or no, by the context size
that would be chosen and the results of earlier loads.

`downloader.py` writes the bytes itself, because `hf_hub_download` cannot resume after an interruption:
`<name>.part` and `<name>.download` lie beside the model's place until every hash is right. `downloads.py` runs them
one after the other on a loop of their own thread.
"""
