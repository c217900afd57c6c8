module scuda.dev/scuda

go 1.26.0
