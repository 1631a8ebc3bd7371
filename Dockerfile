# The CPU image:   docker build -t fcilbench .
# With CUDA:       docker build -t fcilbench:cuda --build-arg DEVICE=cu128 .     (an index of download.pytorch.org/whl)
# README, first:   docker run --rm fcilbench
# README, second:  docker run --rm fcilbench pytest -n auto --dist loadfile
# Your suite:      docker run --rm --gpus all -v $PWD:/here -w /here -e FCILBENCH_DATA=/here/data fcilbench:cuda fcilbench run suite.yaml
FROM python:3.12-slim
ARG DEVICE=cpu
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
WORKDIR /fcilbench
# torch has a layer of its own: a change of the sources does not download it again.
RUN pip install --no-cache-dir torch torchvision --index-url https://download.pytorch.org/whl/$DEVICE
COPY . .
RUN pip install --no-cache-dir '.[dev,offline]'
CMD ["fcilbench", "run", "suites/quickstart.yaml"]
