"""What goes with a message: documents and pictures, read within bounds.

**Documents** (`chat/input/documents.py`, `chat/record/prompt.py`) are stored as text with the message they
came with, in the same transaction, and stand before its words in the prompt: another question about them, in any
chat, shares the prefix. What cannot fit is refused before anything is stored.

**Pictures** (`chat/input/pictures.py`) are stored as their files. The window draws them anew, smaller, from what
Qt's reader took in within bounds (`ui/attachments/pictures.py`); below it nothing is decoded, and imports take no
other picture than could be attached. They travel as `data:` URLs. The projector (`--mmproj`) is loaded only when a
conversation with pictures is answered, which restarts the engine once; states of text mean the same with and
without it, so it is no part of the fingerprint, only of what the self-test's finding is about. In a prompt a
picture is as many ids below −1 as it has tokens, made from its bytes and the projector
(`engine/speaking/pictures.py`): saving, finding and restoring know of nothing else. A file with pictures is not cut
by the store; the engine does that.
"""
