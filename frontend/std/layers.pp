// layers.pp: the layers of the standard library

// Dense computes x @ weight^T + bias over the last axis.
cell Dense(in: int, out: int, bias: bool = true) {
    param weight: f32[out, in] = he_uniform(a = sqrt(5))
    if bias {
        param bias: f32[out] = uniform(1 / sqrt(in))
    }
    construct(x) {
        y = matmul(x, weight, transpose_b = true)
        if has(bias) {
            y = y + bias
        }
        return y
    }
}

cell Flatten(start: int = 1) {
    construct(x) {
        return flatten(x, start = start)
    }
}

cell ReLU {
    construct(x) {
        return relu(x)
    }
}

cell Sigmoid {
    construct(x) {
        return sigmoid(x)
    }
}

cell Tanh {
    construct(x) {
        return tanh(x)
    }
}

// GELU in the form with tanh.
cell GELU {
    construct(x) {
        return gelu(x)
    }
}

// Sequential applies its layers one after the other; the path of a layer is
// its index.
cell Sequential(layers: cell[]) {
    for i in 0..len(layers) {
        self[i] = layers[i]
    }
    construct(x) {
        for layer in self {
            x = layer(x)
        }
        return x
    }
}
