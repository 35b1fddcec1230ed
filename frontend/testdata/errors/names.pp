cell Net {
    layer = Dens(3, 4) // want `E0201: unknown name "Dens"; did you mean "Dense"`
    construct(x) { return layer(x) }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    layer = Dense(3, 4)
    construct(x) {
        y = layr(x) // want `E0201: unknown name "layr"; did you mean "layer"`
        z = relu(q) // want `E0201: unknown name "q"`
        return y + z
    }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    layer = Dense(3, out = 4, bais = true) // want `E0301: the cell Dense has no argument "bais"; did you mean "bias"`
    other = Dense(3) // want `E0302: the cell Dense needs its argument .out.`
    third = Dense(1, 2, true, 4) // want `E0301: the cell Dense takes 3 arguments, not 4`
    again = Dense(1, 2, in = 3) // want `E0301: the argument "in" is given twice`
    order = Dense(in = 1, 2) // want `E0301: an argument without a name cannot follow`
    construct(x) { return layer(x) }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    a = Dense("3", 4) // want `E0303: the argument .in. of Dense is an int, not a string`
    b = Dense(7 / 2, 4) // want `E0304: the argument .in. of Dense is a whole number, not 7/2; use floor`
    c = Dense(3, 4, bias = 1) // want `E0303: the argument .bias. of Dense is a bool, not the number 1`
    d = Sequential(ReLU()) // want `E0303: the argument .layers. of Sequential is a sequence of cell, not a cell ReLU`
    e = Sequential([3]) // want `E0303: an item of the argument .layers. of Sequential is a cell, not the number 3`
    f = Dense(0 - 1, 4) // want `E0401: a dimension of -1 is not possible` `E0305: sqrt.-1. has no value`
    construct(x) { return x }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell A { // the note points here
    inner = B()
    construct(x) { return inner(x) }
}
cell B {
    inner = A() // want `E0310: the cell A contains itself; repeat cells with a loop`
    construct(x) { return inner(x) }
}
infer a { network = A(); input x: f32[2, 3] }
-----
cell Net {
    for i in 0..1_000_000 { block[i] = ReLU() } // want `E0311: the program makes more than 100000 cells`
    construct(x) { return x }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    construct(x) {
        for i in 0..999_999 { for j in 0..999_999 { x = x } } // want `E0311: the program takes more than 2000000 steps`
        return x
    }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    for i in 0..10_000_000 { block[i] = ReLU() } // want `E0311: a range of 10000000 items is too long`
    construct(x) { return x }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    a = ReLU()
    a = Tanh() // want `E0202: the member "a" is defined twice`
    construct(x) { return a(x) }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net { construct(x) { return x } }
cell Net { construct(x) { return x } } // want `E0202: "Net" is defined twice`
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    construct(x) { return x }
    construct(y) { return y } // want `E0202: a cell has one construct`
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net { // want `E0312: the cell Net has no construct`
    a = ReLU()
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    a = ReLU()
    param w: f32[3, 3] // want `E0313: the parameter "w" needs an initialiser; = zeros`
    param v: f32[3, 3] = 3 // want `E0303: a parameter starts with an initialiser, not the number 3; constant.3.`
    param u: int[3] = zeros() // want `E0201: unknown element type "int"`
    param t = zeros() // want `E0303: the type is missing`
    param s: f32[3] = he_uniform() // want `E0303: he_uniform wants a parameter with at least two axes`
    param r: i32[3] = zeros() // want `E0303: a parameter is of a floating-point type`
    param q: f32[1 / 3] = zeros() // want `E0304: a dimension is a whole number, not 1/3`
    buffer p: f32[3] = normal(1) // want `E0303: normal gives every element a value of its own; a buffer starts with one; a buffer starts with zeros.., ones.. or constant.c.`
    construct(x) { return a(x) }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
const a = b // want `E0201: the constant "a" depends on itself`
const b = a
infer c { network = ReLU(); input x: f32[a, 3] }
-----
// options: set:layers=four set:laers=3 // want `E0605: -set laers: the file has no constant of that name; did you mean "layers"`
const layers = 3 // want `E0605: -set layers=four: the constant wants a number`
infer c { network = ReLU(); input x: f32[layers, 3] }
-----
cell Net {
    for i in 0..3 {
        block[2 * i] = ReLU() // want `E0306: the list .block. goes up to index 4 but has no cell at index 1`
    }
    other[0] = ReLU()
    other[0] = ReLU() // want `E0306: index 0 of .other. is taken`
    third[0] = 3 // want `E0303: a list filled by index holds cells, not the number 3`
    construct(x) { return x }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
import "other.pp" // want `E0206: this text cannot import`
infer a { network = ReLU(); input x: f32[2, 3] }
