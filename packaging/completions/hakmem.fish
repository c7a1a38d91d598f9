# Completion of hakmem(1) for fish: the command says what there is.
_HAKMEM_COMPLETE=fish_source hakmem | source
