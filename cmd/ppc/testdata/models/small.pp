// small.pp: two marked stages
const width = 8

cell Net {
    fc1 = Dense(4, width)
    act = ReLU()
    fc2 = Dense(width, 3)
    construct(x) {
        y = act(fc1(x))
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
    stage_config    = { fc1: 0, act: 0, fc2: 1 }
    dataset         = npz("data.npz", columns = ["x", "label"]) | batch(8)
    epochs          = 2
    eval test {
        dataset = npz("data.npz", columns = ["x", "label"]) | batch(8)
        metrics = { accuracy: Accuracy() }
    }
}
