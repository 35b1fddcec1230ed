cell Net {
    drop = Dropout(0.5)
    param table: f32[5, 4] = ones()
    construct(x) {
        a = dropout(x, 1) // want `E0305: a probability of 1 is not possible; `
        b = dropout(x, x) // want `E0303: the probability is a number, not a tensor`
        c = gather(table, x) // want `E0402: .gather.: wants a table with at least one axis and indices i32, got f32.5,4. and f32.2,6.`
        d = split(x, 4, axis = -1) // want `E0401: f32.2,6. cannot be split into 4 equal parts on axis 1`
        e = ones([2, 0]) // want `E0401: a dimension of 0 is not possible here`
        f = ones(dtype = i32) // want `E0302: ones of an element type needs a shape`
        g = zeros([2], 3) // want `E0303: .zeros. wants an element type such as f32, not the number 3`
        h = tril(sum(x)) // want `E0402: .tril.: wants a tensor with at least two axes`
        return x
    }
}
train a { network = Net(); loss = MSELoss(); optimizer = SGD(lr = 1); input x: f32[2, 6]; input y: f32[2, 6] }
-----
cell Net {
    a = Dense(3, 3)
    construct(x) { return a(x) }
}
train a {
    network = Net(); loss = MSELoss(); input x: f32[2, 3]; input y: f32[2, 3]
    optimizer = SGD(lr = 0.1, weight_decay = 0.1, groups = {
        "*.bais": { weight_decay: 0 }, // want `E0201: no parameter "..bais" in the network`
        "a.*": { momentum: 0 }, // want `E0301: .momentum. of SGD cannot differ between parameters; what can are lr, weight_decay`
        a.bias: { lr: 1 }, // want `E0603: earlier keys have every parameter that this one matches`
        a.b: { lr: 1 }, // want `E0201: no parameter "a.b" in the network`
        "a.?eight": 3 // want `E0603: the settings of a group are a map`
    })
}
-----
cell Net {
    a = Dense(3, 3)
    construct(x) { return a(x) }
}
train a {
    network = Net(); loss = MSELoss(); input x: f32[2, 3]; input y: f32[2, 3]
    optimizer = SGD(lr = 0.1, groups = { "*.weight": { weight_decay: 0.1 } }) // want `E0603: .weight_decay. has no effect here: the optimizer does not use it; give .weight_decay. to SGD itself`
}
-----
cell Net {
    a = Dense(3, 3)
    construct(x) { return a(x) }
}
train a {
    network = Net(); loss = MSELoss(); input x: f32[2, 3]; input y: f32[2, 3]
    optimizer = AdamW(lr = warmup(0, 0.1), beta1 = 1) // want `E0305: a number of steps is at least 1, not 0`
}
-----
cell Keeps {
    buffer m: f32[2] = zeros() // want `E0303: a buffer of an optimizer is f32.., for each element, and starts with zeros`
    construct(weight, gradient) { m = m + gradient; return weight - m }
}
cell Net {
    a = Dense(3, 3)
    construct(x) { return a(x) }
}
train a {
    network = Net(); loss = MSELoss(); input x: f32[2, 3]; input y: f32[2, 3]
    optimizer = Keeps()
}
-----
cell Inner {
    buffer m: f32[] = zeros() // want `E0314: an optimizer has no parameters, and cells inside it have no buffers`
    construct(x) { return x + m }
}
cell Keeps {
    inner = Inner()
    param w: f32[] = zeros() // want `E0314: an optimizer has no parameters`
    construct(weight, gradient) { return weight - inner(gradient) * w }
}
cell Net {
    a = Dense(3, 3)
    construct(x) { return a(x) }
}
train a {
    network = Net(); loss = MSELoss(); input x: f32[2, 3]; input y: f32[2, 3]
    optimizer = Keeps()
}
-----
cell Noisy { construct(weight, gradient) { return weight - dropout(gradient, 0.5) } }
cell Net {
    a = Dense(3, 3)
    construct(x) { return a(x) }
}
train a {
    network = Net(); loss = MSELoss(); input x: f32[2, 3]; input y: f32[2, 3]
    optimizer = Noisy() // want `E0314: an optimizer has no random operations`
}
