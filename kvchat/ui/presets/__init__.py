"""How a chat is answered: one form, in the chat settings and in the dialog of a preset.

The list of presets is a page of `settings`.
"""
