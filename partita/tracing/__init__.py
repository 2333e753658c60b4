"""torch -> Graph: `capture` calls all others.

the step, recorded
    capture            by the first of two ways that works
    prepare            the model and batches, as every rank prepares them too
    trace              one step on fake tensors
    record             its calls, with who made them
    calls              AtenCall
    spelling           dtypes and layouts in a Graph's words
    shorten            half precision, call by call
    assigned           what is assigned to a tensor's data
    promote            fp64 throughout
    opaque             the other way: a model as one operator
the record, as a Graph
    convert            at one batch size
    unify              two of them -> one for any batch size
    changed            buffers that change while they are read
operators that are kept whole
    fused              recurrences and attention with dropout
    recurrent          lstm and gru layers
    dropped_attention  attention that drops weights
    ctc                connectionist temporal classification
    draws              random numbers by sample
    quantiles          of what they are drawn from
operators told by what they compute
    activations        gelu and its like, from their parts
    causal             masks that are plain triangles
    known              values that follow from no sample
    values             values made of plain numbers
    large              a tensor as the call that makes it
    boxes              which part of what is read a part is made of
    bounds             bounds of its values
what a trace does not see
    conditions         on samples, where one side only raises, or neither matters
    masks              of samples, that choose rows
    chosen             such rows
    by_rows            what functions make of them
    numbers            of samples, as conditions compare them
    successive         whether the next step is the same step
    kept               what a model keeps besides parameters
    copies             a copy of a model, with what it keeps
    hidden_inputs      numbers and texts of a batch
    leaves             objects of a batch that have tensors inside
optimizers
    optimizer          what one does, found by letting it step
    elements           whether it goes element by element, by the operators that it calls
    update_units       tensors that it is given
    momentum           the momentum that all parameters have
"""
