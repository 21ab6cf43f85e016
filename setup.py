"""Compiles the catalogues in kvchat/locale, which is built or installed with them; the rest is in pyproject.toml."""

from babel.messages.frontend import CommandLineInterface
from setuptools import setup

CommandLineInterface().run(["pybabel", "-q", "compile", "-d", "kvchat/locale", "-D", "kvchat"])
setup()
