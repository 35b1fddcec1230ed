//go:build !amd64

package kernel

func paths() []Path { return []Path{generic()} }
