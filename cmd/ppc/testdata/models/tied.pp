// tied.pp: two marked stages, and a parameter that both read
const width = 8

cell Tail(w: param) {
    construct(x) {
        return matmul(matmul(x, w), w, transpose_b = true)
    }
}

cell Net {
    fc1  = Dense(4, width)
    act  = ReLU()
    fc2  = Dense(width, 3)
    tail = Tail(fc1.weight)
    construct(x) {
        y = tail(act(fc1(x)))
        print("act is:", y)
        return fc2(y)
    }
}

train small {
    network         = Net()
    loss            = CrossEntropyLoss()
    optimizer       = SGD(lr = 0.1)
    input x         : f32[8, 4]
    input label     : i32[8]
    micro_batch_num = 4
    stage_config    = { fc1: 0, act: 0, fc2: 1, tail: 1 }
    dataset         = npz("data.npz", columns = ["x", "label"]) | batch(8)
    epochs          = 2
    eval test {
        dataset = npz("data.npz", columns = ["x", "label"]) | batch(8)
        metrics = { accuracy: Accuracy() }
    }
}
