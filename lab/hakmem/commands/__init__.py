"""One module per command of the CLI: options in, calls of the modules above, words out."""
