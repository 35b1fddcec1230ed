cell Net {
    a = Dense(4, 4) @stage(0) @segment(-1) // want `E0508: segment -1 is outside 0..4096`
    b = Dense(4, 4) @segment("up") // want `E0508: a segment is a number, not a string`
    c = Dense(4, 4) @segment(1, 2) // want `E0508: @segment takes one number`
    d = Dense(4, 4) @segmnt(1) // want `E0105: unknown mark @segmnt; did you mean "segment"`
    e = 3 @segment(1) // want `E0105: a mark stands after a new cell, a parameter or an input, not after the number 3`
    param w: f32[4] = ones() @segment(true) // want `E0508: a segment is a number, not a bool`
    construct(x) { return a(x) }
}
infer a { network = Net(); input x: f32[2, 4] }
-----
infer a {
    network = Dense(4, 4)
    input x: f32[2, 4] @segment(1) // want `E0105: @segment stands after a new cell or a parameter`
}
-----
infer a {
    network = Sequential([Dense(4, 4), Dense(4, 4)])
    input x: f32[2, 4]
    stage_config = { "*": 0 }
    segment_config = [0, 1] // want `E0603: .segment_config. is a map from cells to segments`
}
-----
infer a {
    network = Sequential([Dense(4, 4), Dense(4, 4)])
    input x: f32[2, 4]
    stage_config = { "*": 0 }
    segment_config = { "0": 1 / 2 } // want `E0304: a segment is a whole number`
}
-----
cell Net {
    layer = Dense(4, 4)
    construct(x) { return layer(x) }
}
infer a {
    network = Net()
    input x: f32[2, 4]
    stage_config = { layer: 0 }
    segment_config = { layr: 0 } // want `E0502: no cell "layr" in the network; did you mean "layer"`
}
-----
// keys of a network that could not be built say nothing more
cell Net {
    fc = Dense(4, 4, width = 3) // want `E0301: .*no argument "width"`
    construct(x) { return fc(x) }
}
train t {
    network = Net(); loss = MSELoss(); optimizer = SGD(lr = 0.1)
    input x: f32[8, 4]; input y: f32[8, 4]
    stage_config = { fc: 0 }
}
-----
// a list is meant by its cells
cell Net {
    for i in 0..3 { fc[i] = Dense(4, 4) }
    construct(x) { return fc[2](fc[1](fc[0](x))) }
}
train t {
    network = Net(); loss = MSELoss(); optimizer = SGD(lr = 0.1)
    input x: f32[8, 4]; input y: f32[8, 4]
    stage_config = { fc: 0 } // want `E0502: no cell "fc" in the network; it is a list of cells; fc\[0\.\.3\] means all of them`
}
