cell Net(layers: int = 1000) {
    for i in 0..layers {
        block[i] = Dense(64, 64)
        act[i] = ReLU()
    }
    construct(x) {
        for i in 0..layers {
            x = act[i](block[i](x))
        }
        return x
    }
}
train deep {
    network = Net()
    loss = MSELoss()
    optimizer = SGD(lr = 1e-3)
    input x: f32[1024, 64]
    input label: f32[1024, 64]
    micro_batch_num = 4
}
