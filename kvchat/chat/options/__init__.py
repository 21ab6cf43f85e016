"""How one conversation is answered: its options, its model, the presets it may begin with.

- **Its own model.** A conversation remembers the model it began with (`remember_model`); its turn asks the
  room for it, which changes engines between turns. Looking at a conversation loads nothing. A model that is gone
  leaves choices (`ModelMissing`, `ui/controllers/model.py`).
- **Its own options.** `chat/options/options.py` has each conversation's sampling and template options,
  `chat/options/presets.py` what it may begin with, `chat/context/options_service.py` the rules: template options
  are fixed once something was said, another system prompt makes a branch of copies, sampling changes at any time.
  What they leave open the settings say, then the model's author, then `engine_host/model.py`; at
  temperature 0 nothing is added. `ui/presets/chat_settings.py` and `ui/settings/presets.py` show them in one form
  (`ui/presets/options_form.py`); `ui/models.model_choice.py` offers the models on this computer.
"""
