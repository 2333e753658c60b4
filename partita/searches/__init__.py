"""Plans ranked by what they are predicted to take; `auto` and all that it asks.

what is asked
    auto              the search behind `--plan auto`
    shortlist         the points of a grid that are worth simulating
    finals            the same where costs can be measured
    search            Search: plans ranked
    ranking           their order, bound and explanation
    exhaustive        every plan given, simulated; the oracle
    candidate         Candidate: a plan with its prediction
    objective         what is to be small, and which plans may be compared
    explaining        a ranking in words
    fit               whether a plan fits, and what to change
    peaks             its peaks on times that are off
    memory_bound      what no plan holds less than
    minibatches       several minibatch sizes against each other
    minibatch_choice  what each of them takes
    steps_to_loss     steps to a loss by minibatch, and the law through them
    steps_of_plans    steps to a loss by plan, measured
    learners          plans that are not exact, ranked by these
    steps_file        both kinds of steps as files
    break_even        the bandwidth below which a codec pays
    sweep             a plan over bandwidths
    half_precision    what TF32 and bf16 would take
the grid, by formula
    space             Space: its points as columns
    estimates         steps of all points
    footprint         peaks of all points
    stage_cuts        where a model is cut
    link_speeds       bandwidth and latency between ranks
    recomputed_shares  what recomputing adds
    codings           points with codecs
    families          the best point of each order of passes
the grid, by bounds
    best_first        what may still be better is simulated, the most promising first
    lower_bounds      what no point takes or holds less than, by
    rough_bounds      wherever it is cut
    step_bounds       seconds, where it is really cut
    peak_bounds       bytes, where it is really cut
    sections          what each block takes, wherever a model is cut
    section_memory    what it keeps
    stage_costs       the same of stages that are cut as recipes cut them
    pipes             arrays of points whose pipes are equally long
    rounds            a round by way of all passes
    gathering         gathers of divided weights between them
    circulation       how often bytes go round at the least
    backward_memory   memory at every operator of backward
    tied_parameters   parameters that several stages read
"""
