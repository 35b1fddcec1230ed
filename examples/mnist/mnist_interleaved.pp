// mnist_interleaved.pp: the tutorial on two stages with several chunks each
cell MatMulCell(in: int = 784, out: int = 512) {
    param weight: f32[in, out] = he_uniform(a = sqrt(5))
    construct(x) {
        y = matmul(x, weight)
        print("out is:", y)
        return y
    }
}

cell Network {
    flatten = Flatten()
    layer1  = MatMulCell()
    relu1   = ReLU()
    layer2  = Dense(512, 512)
    relu2   = ReLU()
    layer3  = Dense(512, 10)
    construct(x) {
        x = relu1(layer1(flatten(x)))
        x = relu2(layer2(x))
        return layer3(x)
    }
}

train mnist {
    network         = Network()
    loss            = CrossEntropyLoss()
    optimizer       = SGD(lr = 1e-2)
    input x         : f32[32, 1, 28, 28]
    input label     : i32[32]
    micro_batch_num = 4
    stage_config    = { flatten: 0, layer1: 1, relu1: 0, layer2: 1, relu2: 0, layer3: 1 }
    interleave      = true
    dataset         = mnist(env("DATA_PATH", "data")) | rescale(1/255) | normalize(0.1307, 0.3081) | batch(32)
    epochs          = 1
    eval test {
        dataset = mnist(env("DATA_PATH", "data"), split = "test") | rescale(1/255) | normalize(0.1307, 0.3081) | batch(160)
        metrics = { accuracy: Accuracy() }
    }
}
