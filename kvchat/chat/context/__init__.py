"""What a conversation's context holds and how it is answered, as the window asks for it and changes it.

**A full context** (`chat/context/context_service.py`). Counting asks the engine's tokenizer only. Dropping the
middle and summarising make a branch of copies (`chat/record/tree.py`) after the opening, so that what was read
of that stays warm and nothing said is lost; the summary is an extension of the same prompt, made under the lock.
"""
