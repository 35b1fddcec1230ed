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

// Embedding gives each index its row of the weight.
cell Embedding(vocab: int, dim: int) {
    param weight: f32[vocab, dim] = normal(0.02)
    construct(ids) {
        return gather(weight, ids)
    }
}

// LayerNorm over the last axis, with the biased variance.
cell LayerNorm(dim: int, eps: float = 1e-5) {
    param weight: f32[dim] = ones()
    param bias: f32[dim] = zeros()
    construct(x) {
        centred = x - mean(x, axes = [-1], keepdims = true)
        variance = mean(centred * centred, axes = [-1], keepdims = true)
        return centred * rsqrt(variance + eps) * weight + bias
    }
}

// Dropout sets a share p of the elements to zero and scales the others, in
// training only.
cell Dropout(p: float) {
    construct(x) {
        return dropout(x, p)
    }
}

cell Softmax {
    construct(x) {
        return softmax(x)
    }
}

// CausalAttention of several heads: x is [batch, time, 3 * dim], the queries,
// keys and values of dim columns each; a head has dim / heads consecutive
// columns and looks at its own time and those before.
cell CausalAttention(heads: int, p: float = 0) {
    construct(x) {
        batch, time, width = x.shape
        size = width / (3 * heads)
        parts = []
        for part in split(x, 3, axis = -1) {
            parts = parts + [transpose(reshape(part, [batch, time, heads, size]), [0, 2, 1, 3])]
        }
        q, k, v = parts
        scores = matmul(q, k, transpose_b = true) * (1 / sqrt(size))
        scores = where(tril(ones([time, time], bool)), scores, -inf)
        y = matmul(dropout(softmax(scores), p), v)
        return reshape(transpose(y, [0, 2, 1, 3]), [batch, time, heads * size])
    }
}
