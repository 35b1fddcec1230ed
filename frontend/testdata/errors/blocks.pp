cell Net {
    layer1 = Dense(3, 4)
    block = Sequential([Dense(4, 4), ReLU()])
    construct(x) { return block(layer1(x)) }
}
train a {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[8, 3]
    input label: f32[8, 4]
    stage_config = {
        layr1: 0, // want `E0502: no cell "layr1" in the network; did you mean "layer1"`
        block.7: 1, // want `E0502: no cell "block.7" in the network`
        block[0..3]: 1, // want `E0502: no cell "block.2" in the network`
        "*.conv": 1, // want `E0502: no cell "\*.conv" in the network`
        layer1: -1, // want `E0501: stage -1 is outside`
        block: 1 / 2, // want `E0304: a stage is a whole number, not 1/2`
        block[1..1]: 1, // want `E0502: the range of this key is empty`
        3: 1, // want `E0603: a key of .stage_config. is the path of a cell`
    }
}
-----
train a {
    network = ReLU()
    loss = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[32, 3]
    input label: f32[32, 3]
    micro_batch_num = 5 // want `E0604: 5 micro-batches do not divide the 32 rows of the input .x.; the nearest numbers that do are 4 and 8`
}
-----
// options: micro=64
train a { // want `E0604: 64 micro-batches do not divide the 32 rows of the input .x.; the nearest number that does is 32`
    network = ReLU()
    loss = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[32, 3]
    input label: f32[32, 3]
}
-----
train a {
    network = ReLU()
    los = MSELoss() // want `E0205: nothing uses the cell "los"`
    optimizer = SGD(lr = 0.1)
    micro_batch_nun = 4 // want `E0601: unknown entry "micro_batch_nun" in a train block; did you mean "micro_batch_num"`
    loss = MSELoss()
    loss = MSELoss() // want `E0202: "loss" is given twice`
    precision = f16 // want `E0314: the entry .precision. is not built yet`
    accumulate = 0 // want `E0603: a step has at least one batch, not 0; accumulate = 1, the default, is an update for every batch`
    metrics = {} // want `E0601: the entry .metrics. belongs in an eval block`
    micro_reduction = avg // want `E0603: .micro_reduction. is one of sum, mean, not "avg"`
    schedule = 3 // want `E0603: .schedule. is a word`
    seed = 5_000_000_000 // want `E0603: the seed 5000000000 is above 4294967295`
    epochs = 0 // want `E0603: .epochs. is at least 1, not 0`
    input x: f32[32, 3]
    input label: f32[] // want `E0401: axis 0 of an input is the batch`
}
-----
train a { // want `E0602: the train block has no .network.` `E0602: the train block has no .loss.` `E0602: the train block has no .optimizer.` `E0602: the train block has no inputs`
}
-----
train a {
    network = 3 // want `E0603: .network. is a cell, not the number 3`
    loss = MSELoss() @stages(1) // want `E0105: unknown mark @stages; did you mean "stage"`
    optimizer = SGD(lr = "fast") // want `E0303: the argument .lr. of SGD is a number or a schedule, not a string`
    input x: f32[32, 3] @recompute // want `E0314: @recompute is not built yet`
    input label: f32[32, 3]
}
-----
train a {
    network = ReLU()
    loss = Tanh() // want `E0301: the construct of Tanh takes 1 arguments, not 2`
    optimizer = SGD(lr = 0.1)
    input x: f32[32, 3]
    input label: f32[32, 3]
}
-----
cell Difference { construct(a, b) { return a - b } }
train a {
    network = ReLU()
    loss = Difference() // want `E0401: the loss and the other results of a train block are scalars f32.., not f32.32,3.; take the mean`
    optimizer = SGD(lr = 0.1)
    input x: f32[32, 3]
    input label: f32[32, 3]
}
-----
// options: stages=3
cell Net {
    a = Dense(3, 3) @stage(0)
    b = Dense(3, 3) @stage(1) // want `E0503: the marks give 2 stages, which differs from -stages 3`
    construct(x) { return b(a(x)) }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    a = Dense(3, 3) @stage(0)
    b = Dense(3, 3) @stage(stages - 1) // want `E0602: the program depends on the stage count, which is not given; give -stages`
    construct(x) { return b(a(x)) }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
// options: stages=2
cell Net {
    a = Dense(3, 3) @stage(stages) // want `E0501: stage 2 does not exist: there are 2 stages`
    construct(x) { return a(x) }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    a = Dense(3, 3) @stage(-1) // want `E0501: stage -1 is outside`
    b = 3 @stage(1) // want `E0105: a mark stands after a new cell`
    c = Dense(3, 3) @stage("1") // want `E0501: a stage is a number, not a string`
    d = Dense(3, 3) @lazy_inline // want `E0105: @lazy_inline stands before the declaration`
    construct(x) { return a(x) }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
infer a { network = ReLU(); input x: f32[2, 3] }
infer b { network = ReLU(); input x: f32[2, 3] } // want `E0606: the file has 2 infer blocks; name one: -block a`
-----
// options: block=c // want `E0606: the file has no block "c"`
infer a { network = ReLU(); input x: f32[2, 3] }
-----
cell A { construct(x) { return x } } // want `E0606: the file has no train, infer or eval block`
-----
infer a {
    network = ReLU()
    input x: f32[2, 3]
    optimizer = SGD(lr = 1) // want `E0601: the entry .optimizer. belongs in a train block; leave it out: this infer block trains nothing`
}
-----
infer a {
    network = ReLU()
    input x: f32[2, 3]
    input y: f32[2, 3] // want `E0603: nothing takes this input`
}
-----
infer a {
    network = ReLU()
    input x: f32[2, 3]
    micro_batch_num = 100000000000000000000 // want `E0305: .micro_batch_num. is a whole number between -2\^53 and 2\^53`
}
-----
infer a {
    network = ReLU() @stage(0) @stage(1) // want `E0105: @stage is given twice`
    input x: f32[2, 3] @whole @whole // want `E0105: @whole is given twice`
    stage_confg = { network: 0 } // want `E0601: unknown entry "stage_confg" in a infer block; did you mean "stage_config"`
}
