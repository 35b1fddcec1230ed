cell Net {
    for i in 0..4 {
        block[i] = Dense(3, 3)
    }
    construct(x) {
        for b in block { x = b(x) }
        return x
    }
}
train a {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 0.1)
    input x: f32[8, 3]
    input label: f32[8, 3]
    layout = [2, 1] // want `E0507: the layout places 3 layers, but there are 4`
}
-----
cell Net {
    left = [Dense(3, 3), Dense(3, 3)]
    right = Sequential([Dense(3, 3), ReLU()])
    construct(x) {
        for b in left { x = b(x) }
        return right(x)
    }
}
infer a {
    network = Net()
    input x: f32[8, 3]
    layout = [2, 2] // want `E0507: the network has 2 lists of cells: left, right; layout = \{ left: ... \}`
}
-----
cell Net {
    left = [Dense(3, 3), Dense(3, 3)]
    right = Sequential([Dense(3, 3), ReLU()])
    construct(x) {
        for b in left { x = b(x) }
        return right(x)
    }
}
infer a {
    network = Net()
    input x: f32[8, 3]
    layout = {
        left: [1, 1],
        rigth: [0, 2], // want `E0502: the network has no list of cells "rigth"; did you mean "right"`
    }
}
-----
infer a {
    network = Dense(3, 3)
    input x: f32[8, 3]
    layout = [1] // want `E0507: the network has no list of cells to lay out`
}
-----
infer a {
    network = Sequential([Dense(3, 3), Dense(3, 3)])
    input x: f32[8, 3]
    layout = 3 // want `E0603: a layout is a string or a list of layers per stage, not the number 3`
}
-----
infer a {
    network = Sequential([Dense(3, 3), Dense(3, 3), Dense(3, 3), Dense(3, 3)])
    input x: f32[8, 3]
    stages = 2
    interleave = false
    layout = "Et|t|t|tL" // want `E0507: the layout has 2 chunks on each stage, but .interleave. is false; leave`
}
-----
infer a {
    network = Sequential([Dense(3, 3), Dense(3, 3)])
    input x: f32[8, 3]
    layout = "Et|tmL" // want `E0507: the layout has 1 layers .m. on stage 1`
}
-----
infer a {
    network = Sequential([Dense(3, 3), Dense(3, 3)])
    input x: f32[8, 3]
    layout = "E|t|tLL" // want `E0507: the layout has 2 losses on stage 2`
}
-----
infer a {
    network = Sequential([Dense(3, 3), Dense(3, 3)])
    input x: f32[8, 3]
    layout = [1, 1, 0] // want `E0505: the layout has 3 stages, but stage 2 has no cell; place a cell there`
}
-----
// options: stages=3
infer a {
    network = Sequential([Dense(3, 3), Dense(3, 3)])
    input x: f32[8, 3]
    layout = "offset:0,0" // want `E0507: the layout has 2 stages, but 3 are asked for`
}
