"""The worker: it carries out a Program's instructions on the tensors of one rank.

A new act is a case of `acts`; whatever waits for others is a generator that yields what it waits for.

the worker
    workload      Workload: what ranks compute, whichever plan they follow
    worker        lanes of a rank, as generators
    rank          Rank: state and progress of one rank
    waits         what a lane waits for
    gates         instructions that start together with others
    dispatch      lanes that choose what is next
    ahead         messages that start before their turn
    beside        what the first lane's thread does for others
    pace          what computing and loading take in the best round
    leg           which Program runs for how many rounds
    interleaving  all ranks in one thread, lanes in a drawn order: for tests
    desync        ranks at different collectives
    brake         the step at which ranks stop
    membership    peers that are away
acts
    acts          what each act does
    segment       operators compiled into a Python function
    whole         a model that is one operator
    values        values between stages
    forms         how these lie in memory
    mixing        Mix: linear combinations
    coding        codecs
    serving       servers that do not wait for all
    tolerant_sum  sums over ranks that may go away
    bounds        norms, and the bound on them
    scaler        loss scaling
    rules         update rules and learning rates
    finite        values that are not finite
state
    state         State: all tensors of a rank
    flats         flat tensors of buckets
    buffers       buffers of the model
    owned         the part that a rank owns of a divided bucket
    shared        memory that ranks share
    alike         tensors that are equal on all ranks
    neutral       gradients of what no sample reached
    gather        the whole model, on rank 0
samples and chance
    feed          samples of a minibatch
    draws         random operators
    generators    random generators of the process
    evaluation    a loss for its own sake
    device        processor or accelerator
"""
