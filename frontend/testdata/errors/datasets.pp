infer a {
    network = ReLU()
    input image: f32[32, 1, 28, 28]
    input label: i32[32]
    dataset = mnits("data") | batch(32) // want `E0607: unknown dataset source "mnits"; did you mean "mnist"`
    construct(image, label) { return network(image) }
}
-----
infer a {
    network = ReLU()
    input image: f32[32, 1, 28, 28]
    input label: i32[32]
    dataset = mnist("data") | rescale(1/255) | batch(16) // want `E0607: batch.16. differs from the 32 rows of the input .image.` `E0607: batch.16. differs from the 32 rows of the input .label.`
    construct(image, label) { return network(image) }
}
-----
infer a {
    network = ReLU()
    input image: f32[32, 1, 28, 28]
    input label: i32[32]
    dataset = mnist("data") | batch(32) // want `E0607: the column "image" is u8, the input .image. is f32; add a step: rescale`
    construct(image, label) { return network(image) }
}
-----
infer a {
    network = ReLU()
    input image: f32[32, 1, 28, 27]
    input label: i32[32]
    dataset = mnist("data") | rescale(1/255) | batch(32) // want `E0607: the column "image" has rows .28, 28, 1., the input .image. wants .1, 28, 27.`
    construct(image, label) { return network(image) }
}
-----
infer a {
    network = ReLU()
    input image: f32[32, 1, 28, 28]
    input label: i32[32]
    dataset = mnist("data") | normalize(0, 1) | batch(32) // want `E0607: normalize wants floats, but the column "image" is u8`
    construct(image, label) { return network(image) }
}
-----
infer a {
    network = ReLU()
    input image: f32[32, 1, 28, 28]
    input label: i32[32]
    dataset = mnist("data") | rescale(1/255) // want `E0607: the dataset has no batch step; ... . batch.32.`
    construct(image, label) { return network(image) }
}
-----
infer a {
    network = ReLU()
    input image: f32[32, 784]
    dataset = mnist("data") | rescale(1/255) | batch(32) // want `E0607: the dataset has 2 columns .image, label. for 1 inputs`
}
-----
infer a {
    network = ReLU()
    input x: f32[32, 784]
    dataset = npz("data.npz") | rescale("a") | batch(32) // want `E0303: .factor. of the dataset step rescale is not a string`
}
-----
infer a {
    network = ReLU()
    input x: f32[32, 784]
    dataset = npz("data.npz") | rescale(1, on = "y") | batch(32) // want `E0607: .on. names a column of the source; did you mean "x"`
}
-----
infer a {
    network = ReLU()
    input x: f32[32, 784]
    dataset = npz(env("X")) | batch(32) // want `E0607: env takes the name of a variable and the path`
}
