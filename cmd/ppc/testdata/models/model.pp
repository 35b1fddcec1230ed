// model.pp: four layers without marks
cell Net {
    for i in 0..4 {
        fc[i] = Dense(4, 4)
    }
    construct(x) {
        for layer in fc {
            x = tanh(layer(x))
        }
        return x
    }
}

train four {
    network         = Net()
    loss            = CrossEntropyLoss()
    optimizer       = SGD(lr = 0.1)
    input x         : f32[8, 4]
    input label     : i32[8]
    micro_batch_num = 2
    dataset         = npz("data.npz", columns = ["x", "label"]) | batch(8)
}
