"""Codecs as compiled passes over memory, each with a plain twin; operators as some kind of device has them.

A new codec is an entry in `codecs` (its Spec is in `wire/codec`), a twin in one of the `plain` files and, where cards
are to encode by themselves, functions for them in the `card` files.

on processors
    codecs        the kernels of each codec by name
    compiled      how they are compiled; tensors as arrays
    site          what a codec may look at besides its numbers
    bits          codes of so many bits, packed; Elias' code
    rounding      fp16, bf16, truncate, q8
    levels        fixed, dorefa
    elias         qsgd
    tree          dettmers8
    ranges        inceptionn
    signs         onebit, terngrad
    chosen        threshold, topk, dgc
    adaptive      adaptive, adacomp
    lowrank       powersgd
    shared        weights that several change at once, of which some are short
twins, in plain torch: the oracles
    plain, plain_bits, plain_levels, plain_chosen, plain_lowrank   of all codecs
on cards
    cards         which codecs have kernels there
    card_bits     what these are made of
    card_codes    what a number becomes, and what a code means
    card_levels   codecs that give each number a code
    card_chosen   codecs that choose some numbers
    card_beyond   numbers beyond a bound, in order
    card_largest  the largest numbers
operators
    adam          Adam in one pass over memory, on processors
    dropping      which weights of attention a processor drops
    layer_norm    norms in half precision on processors
    attention, batch_norm   what a card has in place of what was captured
"""
